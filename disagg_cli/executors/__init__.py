"""Where processes run: one Protocol, one module for each kind of place.

protocol.py        what everything above asks of a place
registry.py        name -> module
local.py           this machine, each process in a session of its own
warm.py            this machine, servers forked from one parent that has imported SGLang
ssh.py             hosts that the user's OpenSSH reaches
ssh_connection.py  one connection for each of them, watched, and found again when it is lost
helper.py          the far end of it, sent over it; with keeper.py and procfs.py
slurm/             the nodes of a Slurm job, each process a step
"""
