"""The wire contract: code generated from the .proto files beside this package."""
