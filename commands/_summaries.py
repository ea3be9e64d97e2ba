"""What each verb does, in a line: `--help` shows them all, and loads none of their files.

A test holds these equal to what the verbs say of themselves.
"""

SUMMARIES = {
    "speak": "Say something on the project's channel.",
    "overhear": "Hear what this agent has not heard yet.",
    "monitor": "Watch messages, flags, notes and queues as they change.",
    "jot": "Write a note, for every agent to recall.",
    "recall": "Read a note by its key, or notes by their tags.",
    "list": "List notes, flags, agents, topics or queues.",
    "forget": "Remove a note and its tag entries.",
    "announce": "Take a flag: say that this agent does something now.",
    "await": "Wait until flags are satisfied (or announced, or free).",
    "satisfy": "Release a flag as done, and wake who awaits it.",
    "release": "Give a flag up without calling it done.",
    "hold": "Run a command while holding a flag.",
    "publish": "Put a task into a queue.",
    "work": "Run a program for each task of a queue.",
    "result": "Print the result of a finished task.",
    "ask": "Put a task into a queue and print its result.",
    "dlq": "Look at the tasks that failed for good; try them again, or remove them.",
    "pause": "Have nothing new taken from a queue; without one, list what is paused.",
    "resume": "Let tasks of a paused queue be taken again.",
    "agent": "List the workers; pause them, let them go on, have them leave.",
    "bus": "Look at streams, queues, groups and their figures; nothing is changed.",
    "metrics": "Sum up what workers and publishers counted.",
    "rerun": "Deliver to a group once more what it has done, from a time or a task on.",
    "tidy": "Trim what every group has done, and remove dead consumers and leftovers.",
    "whoami": "Show the agent, project and server, and where each came from.",
    "doctor": "Examine the server and the project, with a remedy for each finding.",
    "clear": "Remove this project's keys, and no other's.",
    "server": "Look after the embedded server.",
    "completion": "Print the script that completes verbs and options in a shell.",
}
