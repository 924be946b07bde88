"""Authentication, and the operations that clients may perform."""
