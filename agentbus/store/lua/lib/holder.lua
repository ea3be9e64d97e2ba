-- holder(field): returns the path, the agent and the subagent ('' for none) of a lease's field; nil
-- for a field that another program wrote.
local function holder(field)
  return string.match(field, '^([^\n]+)\n([^\n]+)\n?([^\n]*)\n?[%w_.-]*$')
end
-- owns(one, agent, sub): returns whether this agent's subagent may end a lease: it may end its own,
-- the agent itself ('') also those of its subagents.
local function owns(one, agent, sub)
  return one.agent == agent and (sub == '' or one.sub == sub)
end
