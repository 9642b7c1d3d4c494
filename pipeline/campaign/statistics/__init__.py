"""Statistics of raw latencies: what they say, how sure it is, where the numbers doubt themselves. Pure functions."""
