-- topic_and_agent(fields): returns the topic and the agent of a channel entry, each '' if absent.
local function topic_and_agent(fields)
  local topic, agent = '', ''
  for i = 1, #fields, 2 do
    if fields[i] == 'topic' then topic = fields[i + 1] end
    if fields[i] == 'agent_id' then agent = fields[i + 1] end
  end
  return topic, agent
end
