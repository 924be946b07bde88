"""What tests and demonstrations need of a Java machine: its compiler, libraries, several tools in one process."""
