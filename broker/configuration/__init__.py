"""Kafka's configuration keys: defined, read, checked, and changed at run time.

- `definitions.py` defines what a key is: type, validator, text form; `keys.py` has all broker keys by name.
- `config.py` resolves the configuration at the start; `properties.py` reads the file, `environment_variables.py` the
  variables, `listeners.py` checks listeners, `zookeeper.py` the keys of ZooKeeper.
- `security_values.py` says which values of security keys are refused.
- `live_config.py` is the present configuration; parts that have to act on a change follow a key there.
- `settings.py`: the keys that one part uses, as a dataclass.
- `topics.py`: the configs of topics, from overrides and the broker's keys.
- `changes.py`: AlterConfigs and IncrementalAlterConfigs, whose results `controller/configs.py` stores;
  `stored_passwords.py` encrypts passwords before, and decrypts them for the running broker. `sasl_changes.py`: which
  keys of SASL may change.

A new key is a row in `tables/`. A topic key that logs obey is also a field in `storage/config.py`; one by which records
are deleted may need a value in `KEPT_WHERE_BROKEN` (`controller/configs.py`). `make docs` writes docs/configuration.md.
"""
