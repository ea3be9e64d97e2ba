#!lua flags=no-writes
-- Reads how far a message to an agent has got.
-- KEYS: inbox, its positions, answers, bell
-- ARGV: entry id
-- Returns: {the sender, heard, at:heard, past, notified, at:notified, past:notified, when it was read beyond heard, the
--          answer's id, bell's last id, now in ms}, each '' if there is none, or {} if there is no such message
--@include stream
local entry = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not entry then return {} end
local by = ''
for i = 1, #entry[2] - 1, 2 do
  if entry[2][i] == 'agent_id' then by = entry[2][i + 1] end
end
local found = { by }
local fields = { 'heard', 'at:heard', 'past', 'notified', 'at:notified', 'past:notified', ARGV[1] }
local kept = redis.pcall('HMGET', KEYS[2], unpack(fields))
if kept['err'] then kept = {} end
for i = 1, #fields do found[#found + 1] = kept[i] or '' end
local answer = redis.pcall('HGET', KEYS[3], ARGV[1])
found[#found + 1] = type(answer) == 'string' and answer or ''
local there, bell = pcall(stream, KEYS[4])
found[#found + 1] = there and bell['last-generated-id'] or '0-0'
local time = redis.call('TIME')
found[#found + 1] = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return found
