"""Engines that carry out the rounds of members: in this process, in several, on a cluster."""
