"""The YAML as users write it, and the Deployment that it resolves to: hosts, GPUs, ports."""
