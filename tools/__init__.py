"""Tools for the work on Barnabas, outside of the installed package: what tests need, measurements, and generators.

- Tests: `gate/` runs their tiers; `waiting.py` has the waits, with one limit for all. They start servers by
  `processes/`, Kafka, ZooKeeper and other languages by `foreign/`, and Java by `jvm/`. `prepare.py` installs these
  programs beforehand.
- Damage: `attack/` (hostile peers), `fuzz/` (broken bytes), `soak/` (load with crashes), `power_cut/`, `simulation/` (a
  cluster in virtual time).
- Generators: `wiregen/` (messages), `golden/` (golden files), `references/` (pages; their lines by `markdown.py`).
"""
