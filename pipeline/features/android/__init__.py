"""The Android library (AAR), the AI pack and their Maven repository, of a bundle."""
