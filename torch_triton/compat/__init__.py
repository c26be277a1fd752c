"""Functions of other libraries, with their signatures and their numbers, computed by rlscan.

One module for each library. Importing one needs that library for what subclasses it alone: `torchrl.GAE` and the buffers of `sb3`.
"""
