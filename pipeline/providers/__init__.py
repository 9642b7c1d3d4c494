"""The execution providers, a folder for each: `PROVIDER` with its facts, and in its module `claims` what it claims.

`pipeline.core.providers` finds them; nothing names a folder but its own modules and tests. The facts are read with each
command, so they are data alone; `claims` is imported when the provider is asked (`claims_of` of
pipeline/partition/claiming.py).
"""
