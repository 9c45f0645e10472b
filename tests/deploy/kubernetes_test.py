#!/usr/bin/python3
"""kubernetes_test.py SCHEMA FILE...: checks that the files agree with the schema of Kubernetes and with each other."""
import os
import sys

import jsonschema
import yaml

# Maps a kind of object to its definition in the schema.
KINDS = {"Job": "job", "Service": "service", "StatefulSet": "stateful_set"}

errors = []


def check(good, where, message):
    if not good:
        errors.append(f"{where}: {message}")


class UniqueKeys(yaml.SafeLoader):
    """Refuses duplicate keys, which YAML forbids but its parsers accept."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key} is given twice{node.start_mark}")
        return super().construct_mapping(node, deep)


def option(args, name):
    return next((arg.split("=", 1)[1] for arg in args if arg.startswith(f"--{name}=")), None)


def check_container(where, spec, container):
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
    check(mounts >= volumes, where, f"volumes that are not mounted: {volumes - mounts}")
    requests, limits = (container["resources"].get(what, {}) for what in ("requests", "limits"))
    check({"cpu", "memory"} <= set(requests), where, f"requests: got {sorted(requests)}, expected cpu and memory")
    check(requests.get("memory") == limits.get("memory"), where, "the request and the limit of memory differ")
    return mounts - volumes


def check_job(where, job, services):
    name, spec, pod = job["metadata"]["name"], job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    args = container["args"]
    unknown = check_container(where, pod, container)
    check(not unknown, where, f"mounts of unknown volumes: {unknown}")
    nodes = option(args, "nnodes").split(":")
    most = int(nodes[-1])
    check(spec["completions"] == spec["parallelism"] == most, where, "completions, parallelism and --nnodes differ")
    folders = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    tokens = [folders[volume["name"]] + "/token" for volume in pod["volumes"] if "secret" in volume]
    check(tokens == [option(args, "token_file")], where, f"--token_file: expected the file of the secret, {tokens}")
    grace = int(option(args, "grace_period"))
    check(pod["terminationGracePeriodSeconds"] > grace, where, "pods are killed before --grace_period is over")
    for rule in spec["podFailurePolicy"]["rules"]:
        named = rule.get("onExitCodes", {}).get("containerName", container["name"])
        check(named == container["name"], where, f"unknown container {named} in podFailurePolicy")
    if option(args, "rdzv_backend") == "etcd":
        host, port = option(args, "rdzv_endpoint").split(":")
        ports = [p["port"] for p in services[host]["spec"]["ports"]] if host in services else []
        check(int(port) in ports, where, f"no Service {host} with port {port}")
        variables = {variable["name"] for variable in container["env"]}
        wanted = option(args, "rdzv_id")
        known = wanted.startswith("$(") and wanted[2:-1] in variables
        check(known, where, f"--rdzv_id: got {wanted}, expected a variable of the container")
        return
    service = services.get(pod.get("subdomain"))
    if service is None:
        return check(False, where, f"subdomain {pod.get('subdomain')}: Service not found in the files")
    check(service["spec"].get("clusterIP") == "None", where, "the Service is not headless, so pods have no names")
    selector = {"batch.kubernetes.io/job-name": name}
    check(service["spec"]["selector"] == selector, where, "the Service selects other pods")
    pod0 = f"{name}-0.{pod['subdomain']}"
    check(option(args, "master_addr") == pod0, where, f"--master_addr: expected the name of pod 0, {pod0}")
    port = int(option(args, "master_port"))
    check(port in [p["port"] for p in service["spec"]["ports"]], where, f"the Service has no port {port}")
    check(port in [p["containerPort"] for p in container["ports"]], where, f"the container has no port {port}")


def check_stateful_set(where, stateful, services):
    spec, template = stateful["spec"], stateful["spec"]["template"]
    claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    check(spec["serviceName"] in services, where, f"no Service {spec['serviceName']}")
    check(spec["selector"]["matchLabels"] == template["metadata"]["labels"], where, "selects other pods than its own")
    for container in template["spec"]["containers"]:
        unknown = check_container(where, template["spec"], container) - claims
        check(not unknown, where, f"mounts of unknown volumes: {unknown}")


def main(schema_path, paths):
    with open(schema_path, encoding="utf-8") as file:
        schema = yaml.safe_load(file)
    jsonschema.Draft7Validator.check_schema(schema)
    objects = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            documents = list(yaml.load_all(file, UniqueKeys))
        check(documents, path, "is empty")
        for document in documents:
            where = f"{os.path.basename(path)}: {document.get('kind')}"
            definition = KINDS.get(document.get("kind"))
            if definition is None:
                errors.append(f"{where}: unknown kind, expected one of {sorted(KINDS)}")
                continue
            kind = {"$ref": f"#/definitions/{definition}", "definitions": schema["definitions"]}
            found = list(jsonschema.Draft7Validator(kind).iter_errors(document))
            errors.extend(f"{where}: {'.'.join(map(str, each.path)) or 'top'}: {each.message}" for each in found)
            if not found:
                objects.append((where, document))
    services = {o["metadata"]["name"]: o for _, o in objects if o["kind"] == "Service"}
    for where, each in objects:
        if each["kind"] == "Job":
            check_job(where, each, services)
        elif each["kind"] == "StatefulSet":
            check_stateful_set(where, each, services)
    for error in errors:
        print("FAIL:", error)
    print(len(objects), "objects in", len(paths), "files")
    return 1 if errors or not objects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
