-- truncate(value, width): returns the first bytes of a value. The last letter of what is cut may not be whole, and is left out.
local function truncate(value, width)
  return #value <= width and value or (string.gsub(string.sub(value, 1, width), '[\192-\255][\128-\191]*$', ''))
end
