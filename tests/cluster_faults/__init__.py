"""Commands on a cluster of three nodes, which are killed, frozen and restarted, and whose shards are moved.

`scenarios.py` has the commands, `disturbances.py` what happens to the cluster, `run.py` brings one of each together,
and `copies.py` compares every copy of every shard with what it must hold.
"""
