"""From results to what an app ships: chooses an artifact per target, makes the bundle, proves every byte of it."""
