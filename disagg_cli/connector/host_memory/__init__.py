"""SGLang, NIXL and their KV transfer on a machine with no GPU, with the GPU's head layout.

mode.py          the environment and the flags that servers need on CPUs; pure, read by engine/
hooks.py         what is changed inside SGLang, through its plugin door; imported only where the mode is asked for
stand_ins/       importable in place of CUDA-only packages; at the head of PYTHONPATH in this mode only
warm_parent.py   a process that has imported SGLang once and forks servers
import_sglang.py what it imports
imported.py      what that import has read: a parent is right for a server only where this has not changed
forked.py        the child's side of a fork: become a server

Nothing here is imported on a GPU platform. Tried with SGLang 0.5.23, NIXL 1.5.1, torch 2.14.
"""
