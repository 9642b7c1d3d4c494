"""A lab of many hosts: PostgreSQL is its queue, its leases and its store. Times are the database's, never a host's."""
