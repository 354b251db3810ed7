"""One job on several clusters that share nothing but a bucket: DiLoCo (https://arxiv.org/abs/2311.08105).

Each cluster trains by itself, on its share of every step's windows. After `outer.every` steps, a round, it puts the
difference between the parameters with which the round began and its own into the bucket, in 8 or 4 bits; the mean of
the clusters' differences is the gradient of an outer optimizer, SGD with Nesterov momentum, and all go on from what
that makes of the parameters with which the round began.

Which clusters took part in a round is a record that is written once (training/outer/rounds.py). From these records and
the differences everybody computes the same parameters, bit for bit: nobody leads, and nothing else is exchanged. A
cluster that comes later, or comes back, computes the rounds that it has missed, and takes part from the next one on.
"""
