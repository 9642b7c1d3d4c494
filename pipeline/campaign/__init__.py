"""The plan of a config's runs, running them, their results in a database, and statistics from raw latencies."""
