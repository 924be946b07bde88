"""Programs that write the golden files of the tests with Apache Kafka's own code; run by hand."""
