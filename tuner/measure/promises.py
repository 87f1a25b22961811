"""What promise 1 asks of a winner."""

# What the lower bound of a winner's speed-up must exceed.
MIN_SPEEDUP = 1.01
# What costs no more than this, beyond noise, does no harm: a set of plans together, a plan at one of several sizes.
MAX_LOSS = 0.99
# How often the whole search of one workload may name a winner that is none: one side of a 95% interval.
FALSE_WINNERS = 0.025
