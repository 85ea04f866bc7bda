"""What survives a restart. One writer at a time; everybody else asks the scheduler."""
