"""Straightforward implementations of what three models' released code computes, which ``benchmarks/train.py`` compares with.

Written by us from the papers and from descriptions of that code, none of which is copied: the same weights (under the released
names), the same numbers, and the same way there. They take their time where that code takes it: all frames up to the padded
length are encoded, proposals are built, normalised copies are made for every batch of queries, and losses loop over videos.
"""
