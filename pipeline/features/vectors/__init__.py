"""Test vectors: what an app gives a file that ships and what that makes of it, kept in the bundle and given again."""
