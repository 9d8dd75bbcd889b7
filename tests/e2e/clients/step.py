"""A step of an agent's task, run by its shell tool: what happens to swapd between two turns of a conversation.

``step.py URL swap``: ask the other model, which unloads the agent's. ``step.py URL kill``: kill the process of the
agent's model. Prints the word that it is given last, so that it shows in the answer.
"""

import http.client
import json
import os
import signal
import sys


def ask(url: str, method: str, path: str, body: object = None) -> dict[str, object]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request(
        method, path, body=json.dumps(body) if body else None, headers={"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    answer: dict[str, object] = json.loads(response.read())
    assert response.status == 200, answer
    return answer


def main(url: str, what: str, model: str, word: str) -> None:
    if what == "swap":
        ask(url, "POST", "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "x"}]})
    else:
        rows = ask(url, "GET", "/api/status")["models"]
        assert isinstance(rows, list)
        os.kill(next(row["pid"] for row in rows if row["id"] == model), signal.SIGKILL)
    print(word)


if __name__ == "__main__":
    main(*sys.argv[1:])
