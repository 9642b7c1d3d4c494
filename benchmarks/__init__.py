"""Side-by-side measurements with what users have today. No test times anything: these do."""
