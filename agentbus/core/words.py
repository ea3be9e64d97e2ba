"""The words in the names of sessions, 512 of them: a name follows from a word's place, so none may move."""

WORDS = """
acorn adder agate alder almond alpaca amber anchor ant antler anvil apple apricot arch arrow ash
aspen atlas attic auk avocado awning axle badge badger bagel balloon bamboo banana banjo barge
barley barn barrel basil basin basket bat bay beacon beagle bean bear beaver bee beech beet beetle
bell bench birch bison blanket boar boat bobcat bonnet book boot bottle bow bowl bramble bream brick
bridge brook broom buck bucket buckle bud bull button cabin cable cactus cake camel canal canary
candle canoe canvas canyon cape carp carpet carrot cart castle cat cave cedar celery cello chalk
cherry chest chive cicada civet clam cliff cloak clock cloud clove clover coal coast cobalt cobra
cocoa cod coin collie colt comb comet compass condor copper coral corgi corn cottage cotton cove cow
coyote crab crane crater creek cress cricket crow crown crystal cub cumin cup curlew currant curtain
cypress dace dahlia daisy date dawn deer delta desert desk diamond dill dingo dodo dog dolphin dome
donkey door dove drake drum duck dune dusk eagle easel eel egret eider elder elk elm ember emerald
emu endive ermine ewe falcon fawn fennel fern ferret fig finch fir fjord flame flax flint flute fly
foal fog forest forge fox frog frost galaxy garden garlic garnet gate gecko gerbil geyser gibbon
ginger giraffe glacier glade glove gnat gnu goat gold goose gopher gorse granite grape grass gravel
grouse grove gulf gull guppy hammer hamster harbor hare harp hat hawk hazel heath heather hen heron
hickory hill hippo holly honey hops hornet horse hound husky hyena ibex ibis iguana impala island
ivory ivy jackal jacket jade jaguar jar jasmine jay jetty jewel juniper kale kelp kestrel kettle
kite kitten kiwi koala krill ladder lagoon lake lamb lamp lantern larch lark laurel ledge lemon
lemur lens lentil leopard lettuce lilac lily lime linden linen linnet lion lizard llama lobster
locust loom loon lotus lynx lyre macaw magpie maize mallard mango mantis maple marble marlin marsh
marten martin meadow melon meteor mill mink minnow mint mirror mist mole monkey moon moose mosaic
moss moth mouse mule mussel myrtle nest nettle newt nutmeg oak oasis oat ocean ocelot octopus okapi
olive onion opal orange orbit orca orchid oregano oriole osprey ostrich otter owl ox oyster paddle
pagoda palm panda pansy panther papaya paper parrot parsley pea peach peanut pear pebble pecan
penguin peony pepper perch pewter piano pigeon pike pillow pine plover plum pond pony poodle poplar
poppy porch potato prawn puffin puma pumpkin puppy quail quarry quartz quill quince rabbit raccoon
radish raft rain ram raven ray reed rhubarb rice robin rook rose rowan rye saffron sage salmon
sardine savory seal sedge sesame shark sheep shrew shrimp skate skunk sloth snail snake snipe sole
sorrel sparrow spider spinach sponge spruce squash squid stag stoat stork sumac swallow swan swift
tansy tapir teal tern terrier thistle thrush thyme tiger toad tomato toucan trout tulip tuna turkey
turnip turtle vanilla vetch vine violet viper vole vulture walnut walrus warbler wasp weasel weevil
whale wheat willow wolf wombat wren yak yarrow yew yucca zebra
"""
