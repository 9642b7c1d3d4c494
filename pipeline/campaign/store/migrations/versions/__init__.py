"""One module for each revision, in the order of their numbers. A revision that was released never changes."""
