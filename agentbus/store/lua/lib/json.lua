-- The settings of cjson are one for all users of a server, and any user who may run scripts changes them: these are set before
-- it is used. The in-memory server has none.
if cjson.decode_max_depth then
  cjson.decode_max_depth(1000)
  cjson.encode_max_depth(1000)
  cjson.encode_number_precision(14)
end
-- decode(text): returns the value of a JSON text; nil if it is not JSON, or nested too deep. It never fails, because another program may have
-- written the text, and what was written before the failure of a script stays.
local function decode(text)
  local read, value = pcall(cjson.decode, text)
  if read then return value end
end
