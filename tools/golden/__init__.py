"""Programs that write the golden files of the tests with Apache Kafka's own code; run by hand.

`record_frames.py` records requests and responses of stock clients for `tests/wire/golden_frames/`;
`GoldenBatches.java` writes record batches for `tests/storage/golden_batches/`. `ValidateBatches.java` has Kafka check
batches, for `tests/storage/test_validation_oracle.py`.
"""
