"""Says how many rounds find a difference of a given size, from a short pilot."""
