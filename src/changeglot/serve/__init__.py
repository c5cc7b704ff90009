"""Electric's shape log over HTTP, from the tables of a lake: no Spark, and no state but the tables."""
