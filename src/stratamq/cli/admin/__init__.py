"""Commands that drive a running cluster over remoting; RocketMQ's brokers and name servers understand them as well."""
