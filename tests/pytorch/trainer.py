"""A trainer in Python whose parameter server is a program in C++. They meet at the store of the job.

It asks the server's store for numbers, and answers with their sum.
"""

import datetime
import os

import torch.distributed as dist

store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                      timeout=datetime.timedelta(seconds=60))
numbers = dist.PrefixStore("server", store).get("numbers").decode()
store.set("trainer/sum", str(sum(int(number) for number in numbers.split())))
print(f"trainer: got {numbers} from {store.get('server/name').decode()}", flush=True)
