"""`faceter data`: converts data sets to Parquet, inspects and checks them."""
