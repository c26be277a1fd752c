"""Functions of other libraries, with their signatures and their numbers, computed by rlscan. One module for each library, which need not be installed."""
