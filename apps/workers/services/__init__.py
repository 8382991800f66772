"""Commands of the registry, by subject. The database's clock decides what is late."""
