"""What SGLang's NIXL connector does with a plan, release by release, and the plugin that disagg loads into SGLang."""
