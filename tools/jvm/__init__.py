"""What tests and demonstrations need of a Java machine: finding Java, fetching jars, several tools in one process."""
