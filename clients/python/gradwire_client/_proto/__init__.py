"""The messages and the service of the gateway's protocol, which the build generates from gateway.proto."""
