"""Orders through a broker, ordered consumers and a Spark job, to Parquet and a report: ``make pipeline``."""
