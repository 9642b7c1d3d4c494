"""Models that an app runs one after the other, as one graph: chains with windows, and loops over tokens."""
