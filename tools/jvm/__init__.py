"""Java for tests and demonstrations: its compiler, libraries, several tools in one process."""
