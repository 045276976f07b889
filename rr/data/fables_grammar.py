"""The grammar of the fables: data for `rr.data.fables`, which parses it.

A line is `weight text | feature=value; ...`. In a text, [rule] expands a rule here; [rule:x] also
remembers its text as {x} and its features as {x.feature}; [rule-y] leaves out the value of {y};
a rule's name may end in {...}. A feature with a dot in its name is remembered as it is, and
she, he, it stand for all their pronouns. Changing a character makes another corpus.
"""

GRAMMAR = """
= story
1 [opening] [wishing] [doubting] [far] [leaving] [meeting] [deed.{need.fit}:deed] \
[gift.{deed.kind}] [arriving] {hero.He} tried [try.{obs.id}]. [crossing.{gift}:crossing] \
[home.{crossing.won}] [moral]

= opening
9 Once, [place], there lived [trade.{place.kind}:trade] named [name].
4 There was once, [place], [trade.{place.kind}:trade] called [name].
2 Long ago, [place], lived [name], [trade.{place.kind}:trade].
1 When the world was young, [name] was [trade.any:trade] [place].
= place
9 [place.hill:place]
7 [place.sea:place]
5 [place.wood:place]
3 [place.city:place]
= place.hill
7 in a village under the hill | is=the village; there=in the village; kind=hill
3 on a farm in the meadows | is=the farm; there=on the farm; kind=hill
1 in a valley full of bees | is=the valley; there=in the valley; kind=hill
= place.sea
6 in a town by the sea | is=the town; there=in the town; kind=sea
3 on an island of the north | is=the island; there=on the island; kind=sea
1 in a harbour without ships | is=the harbour; there=in the harbour; kind=sea
= place.wood
5 at the edge of a forest | is=the forest; there=in the forest; kind=wood
2 in a clearing among pines | is=the clearing; there=in the clearing; kind=wood
= place.city
4 in a city of seven bridges | is=the city; there=in the city; kind=city
1 in a castle with a leaking roof | is=the castle; there=in the castle; kind=city
= trade.hill
8 a shepherd | is=shepherd
4 a weaver | is=weaver
2 a miller | is=miller
1 a beekeeper | is=beekeeper
= trade.sea
8 a fisher | is=fisher
4 a sailmaker | is=sailmaker
2 a net mender | is=net mender
1 a boatbuilder | is=boatbuilder
= trade.wood
8 a woodcutter | is=woodcutter
4 a basket maker | is=basket maker
2 a mushroom hunter | is=mushroom hunter
1 a spoon carver | is=spoon carver
= trade.city
8 a baker | is=baker
4 a tailor | is=tailor
2 a lamplighter | is=lamplighter
1 a clockmaker | is=clockmaker
= trade.any
3 a cook | is=cook
2 a piper | is=piper
1 a gardener | is=gardener

= name
11 [name.she:hero]
10 [name.he:hero]
= name.she
12 Mara | she
9 Elsa | she
7 Nora | she
6 Tilda | she
5 Ines | she
4 Wren | she
3 Odile | she
3 Hedda | she
2 Petra | she
2 Lucia | she
1 Saskia | she
1 Yrsa | she
= name.he
12 Tobin | he
9 Anders | he
7 Milo | he
6 Jonas | he
5 Pavel | he
4 Emil | he
3 Casper | he
3 Ivo | he
2 Rufus | he
2 Lorenz | he
1 Bram | he
1 Gustav | he

= wishing
7 More than anything {hero.he} wanted [wish], [reason.{wish.id}:reason].
4 {hero.He} had one wish: [wish], [reason.{wish.id}:reason].
2 Every night {hero.he} dreamed of [wish], [reason.{wish.id}:reason].
1 What {hero.he} lacked was [wish], [reason.{wish.id}:reason].
= wish
16 a [metal:shade] [smithed]
5 a [tree:shade] flute | wish.id=flute; wish.is=flute; wish.him=it; wish.was=was
3 a jar of [taste:shade] honey | wish.id=honey; wish.is=honey; wish.him=it; wish.was=was
6 a pair of [colour:shade] boots | wish.id=boots; wish.is=boots; wish.him=them; wish.was=were
4 a handful of [colour:shade] seeds | wish.id=seeds; wish.is=seeds; wish.him=them; wish.was=were
2 three [colour:shade] hens | wish.id=hens; wish.is=hens; wish.him=them; wish.was=were
= smithed
9 bell | wish.id=bell; wish.is=bell; wish.him=it; wish.was=was
7 lamp | wish.id=lamp; wish.is=lamp; wish.him=it; wish.was=was
2 kite | wish.id=kite; wish.is=kite; wish.him=it; wish.was=was
= metal
6 silver
5 brass
4 copper
2 glass
1 paper
= tree
5 willow
3 cherry
2 ash
1 bone
= taste
5 winter
3 heather
2 mountain
1 southern
= colour
6 red
5 blue
4 green
2 speckled
1 violet
= reason.bell
6 to call the lost home | done=nobody was lost again
3 to wake the orchard | done=the orchard woke early every spring
1 to ring for each new child | done=it rang for every child
= reason.lamp
6 to read in the long winters | done=the winters were filled with reading
3 to keep the wolves away | done=the wolves kept to their hills
1 to learn the stars | done=every star was given a name
= reason.kite
6 to know when storms would come | done=no storm came as a surprise
3 to send letters by air | done=letters flew over the roofs like geese
1 to tickle the moon | done=the moon was heard to laugh
= reason.flute
6 to teach the birds a song | done=the birds sang it at dawn
3 to play at the harvest dance | done=the dance went on until morning
1 to quiet the north wind | done=the north wind slept until March
= reason.honey
6 to cure a sick mother | done=the mother rose from her bed
3 to sweeten the bread of the poor | done=the poor ate sweet bread
1 to make peace with the bears | done=the bears bowed in passing
= reason.boots
6 to dance at the fair | done=the whole fair stood still to watch
3 to cross the mountains | done=the mountains seemed half as high
1 to be heard coming home | done=every door was open before the first knock
= reason.seeds
6 to plant a garden by the road | done=travellers slept in a blue garden
3 to feed the pigeons | done=the pigeons grew as round as loaves
1 to see what would grow | done=what grew was good to eat
= reason.hens
6 to have eggs for the children | done=the children had eggs for breakfast
3 to have company | done=the evenings were loud and warm
1 to win a ribbon | done=a ribbon hung over the door

= doubting
7 {hero.His} [kin:kin] [name.{kin.he}-hero:other] [doubt:doubt].
2 But {hero.his} [kin:kin] [name.{kin.he}-hero:other] [doubt:doubt].
= kin
6 brother | he
6 sister | she
3 uncle | he
3 aunt | she
1 grandfather | he
1 grandmother | she
= doubt
7 laughed | id=laugh
5 called it foolish | id=fool
3 only sighed | id=sigh
1 turned to the wall | id=wall

= far
7 The {wish.is} waited [number:days] days [way], beyond [obstacle].
3 Beyond [obstacle], [number:days] days [way], {wish.was} the {wish.is}.
= number
9 three
7 seven
5 two
4 nine
3 five
2 four
1 eleven
= way
5 north
4 east
3 west
2 south
= obstacle
8 a wide river | obs=the river; obs.id=river
6 an endless wall | obs=the wall; obs.id=wall
5 a wandering wood | obs=the wood; obs.id=wood
4 a dark cave | obs=the cave; obs.id=cave
2 a giant's gate | obs=the gate; obs.id=giant

= leaving
6 So [when] {hero.he} took [item] and set out.
3 {hero} packed [item] and left [when].
1 Off {hero.he} went [when] with [item].
= when
8 one [air] [hour]
4 before dawn
3 after the harvest
2 at the first snow
1 on midsummer eve
= air
5 bright
4 cold
3 misty
2 windy
1 golden
= hour
6 morning
3 evening
1 night
= item
8 some bread | item=the bread; item.id=bread
5 a blanket | item=the blanket; item.id=blanket
4 a lantern | item=the lantern; item.id=lantern
3 a whistle | item=the whistle; item.id=whistle
2 a rope | item=the rope; item.id=rope

= meeting
8 On the road {hero.he} met [friend] who [need.{item.id}:need].
4 At a crossroads sat [friend] who [need.{item.id}:need].
2 Under a thorn tree lay [friend] who [need.{item.id}:need].
= friend
9 a [look.a:look] [animal:friend]
4 an [look.an:look] [animal:friend]
= look.a
7 grey
5 small
4 lame
3 proud
3 young
2 sleepy
1 one-eyed
= look.an
6 old
3 angry
1 elegant
= animal
8 heron | it; can=fly
6 fox | it; can=think
5 otter | it; can=swim
4 mole | it; can=dig
3 bear | it; can=carry
2 owl | it; can=fly
2 badger | it; can=dig
1 tortoise | it; can=think
= need.bread
8 was hungry | fit=yes
2 was cold | fit=no
1 was lost | fit=no
= need.blanket
8 was cold | fit=yes
2 was hungry | fit=no
1 was sad | fit=no
= need.lantern
8 was lost | fit=yes
2 was cold | fit=no
1 was stuck in a ditch | fit=no
= need.whistle
8 was sad | fit=yes
2 was hungry | fit=no
1 was lost | fit=no
= need.rope
8 was stuck in a ditch | fit=yes
2 was lost | fit=no
1 was cold | fit=no

= deed.yes
7 {hero} gave {friend.him} {item}. | kind=kind
4 "Take {item}," said {hero}. | kind=kind
3 {hero} hurried past. | kind=cold
1 "I need {item} myself," said {hero}. | kind=cold
= deed.no
5 {hero} had no help for that, but stayed until morning. | kind=kind
3 "I will keep you company," said {hero}. | kind=kind
4 {hero} hurried past. | kind=cold
1 "I have only {item}," said {hero}. | kind=cold

= gift.kind
5 "At {obs}," said the {friend}, "[hint]."
2 The {friend} bowed. "At {obs}, [hint]."
= hint
5 say [word:a], [word-a:b], [word-a-b:c] | gift=words
4 call my name, [strange:called] | gift=call
3 clap [number:claps] times | gift=clap
= word
9 moss
7 salt
6 candle
5 thunder
5 apple
4 feather
4 iron
3 sparrow
3 velvet
2 moonlight
2 ginger
2 anchor
1 pebble
1 ladder
1 oak
= strange
5 Ozri
4 Hum
3 Quillow
3 Bexa
2 Tumtara
1 Ofelo
= gift.cold
4 "You will think of me at {obs}," said the {friend}. | gift=none
2 The {friend} said nothing at all. | gift=none

= arriving
6 After {days} days of [weather] {hero.he} stood before {obs}.
3 It took {days} days to reach {obs}.
1 Then, behind {days} days of [weather], there was {obs}.
= weather
6 rain
4 dust
3 wind
2 sun
1 hail
= try.river
5 to wade, but the water was strong
3 to build a raft, but it sank
1 to wait for a ferry, but none came
= try.wall
5 to climb, but the stones were smooth
3 to walk around it, but it had no end
1 to knock, but only the echo answered
= try.wood
5 to mark the trees, but the marks faded
3 to follow the moon, but clouds came
1 to go backwards, but that was no better
= try.cave
5 to feel along the rock, but there were holes
3 to light a fire, but the dark put it out
1 to count the steps, but lost the number
= try.giant
5 to creep past, but the giant turned over
3 to sing softly, but the giant sang along
1 to push the gate, but it was heavy

= crossing.words
8 {hero.He} said "{a}, {b}, {c}," and [opens.{obs.id}]. | won=yes; moral=kind
1 {hero.He} said "{a}, {c}, {b}," and nothing happened. | won=no; moral=forgot
= crossing.call
1 "{called}!" {hero.he} cried, and the {look} {friend} [saves.{friend.can}]. | won=yes; moral=kind
= crossing.clap
1 {hero.He} clapped {claps} times, and [opens.{obs.id}]. | won=yes; moral=kind
= crossing.none
4 So {hero.he} went back to beg pardon, and the {look} {friend} [saves.{friend.can}]. \
| won=yes; moral=sorry
5 No one was there to ask for help. | won=no; moral=cold
= opens.river
3 the water stood as still as glass
1 stones rose one by one
= opens.wall
3 a door opened where there was none
1 the wall lay down like a dog
= opens.wood
3 the trees stepped aside
1 there lay a path of white stones
= opens.cave
3 a hundred small lights woke
1 the dark ran away like water
= opens.giant
3 the giant smiled without waking
1 the giant rolled away like a barrel
= saves.fly
3 led the way from above
1 brought {wish.him} in its claws
= saves.swim
3 swam ahead through the deep
1 called on all its cousins
= saves.dig
3 dug a way underneath
1 knew an old back door
= saves.carry
3 carried {hero.him} across
1 roared until the way was clear
= saves.think
3 knew a trick worth ten ropes
1 asked a riddle that opened the way

= home.yes
6 {hero.He} brought the {shade} {wish.is} home, and {reason.done}.
4 {hero.He} brought home the {shade} {wish.is}, and {other} [glad.{doubt.id}].
3 So the {wish.is} came to {place.is}, and {reason.done}.
2 So the {shade} {wish.is} came to {place.is}, and {other} [glad.{doubt.id}].
= glad.laugh
3 did not laugh again
1 laughed, this time for joy
= glad.fool
3 called it luck
1 called it wise, and meant it
= glad.sigh
3 sighed, but with relief
1 danced on the table
= glad.wall
3 turned around at last
1 smiled at the wall
= home.no
6 {hero.He} came home without the {wish.is}, and {other} [sorry.{doubt.id}].
3 Nobody {place.there} ever saw the {shade} {wish.is}, and {other} [sorry.{doubt.id}].
= sorry.laugh
3 did not laugh
1 laughed for a week
= sorry.fool
3 said nothing, loudly
1 never spoke of it
= sorry.sigh
3 put the soup on the fire
1 wept a little
= sorry.wall
3 made room by the wall
1 turned around and listened

= moral
6 They still say {place.there}: [proverb.{crossing.moral}].
3 Ask any {trade.is}: [proverb.{crossing.moral}].
2 Remember: [proverb.{crossing.moral}].
= proverb.kind
6 what you give, the road gives back
3 a small gift opens a large door
1 the longest way is shorter with a friend
= proverb.sorry
6 it is never too late to turn around
3 a sorry word weighs more than gold
1 the second chance is the best one
= proverb.cold
6 whoever hurries past a friend walks alone
3 a full sack makes an empty house
1 pity is lighter than regret
= proverb.forgot
6 listen twice before you walk once
3 the order of things matters
1 a good word in the wrong place is noise
"""
