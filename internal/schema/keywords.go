package schema

import "strings"

// The library ignores a keyword that it does not know, so that a mistyped minLenght would check nothing and nobody
// would notice. So each keyword of each schema is looked up here, under the schema's own draft.

// place says where the value of a keyword contains further schemas.
type place int

const (
	nowhere place = iota
	itself        // the value is a schema, or a list of them
	byName        // an object of schemas under names of their own
)

type keyword struct {
	since, until int // the drafts that have it: 4, 6, 7, 2019, 2020
	place        place
}

const newest = 2020

// vocabulary has the keywords of JSON Schema that the library applies. A keyword that changes no outcome, such as
// examples, may occur in a schema of any draft.
var vocabulary = []struct {
	keyword
	names string
}{
	{keyword{4, newest, nowhere}, "$schema $ref type enum format minimum maximum exclusiveMinimum exclusiveMaximum " +
		"multipleOf minLength " +
		"maxLength pattern minItems maxItems uniqueItems required minProperties maxProperties contentEncoding " +
		"contentMediaType"},
	{keyword{4, newest, nowhere}, "$comment title description default examples deprecated readOnly writeOnly"},
	{keyword{4, newest, itself}, "items additionalProperties allOf anyOf oneOf not"},
	{keyword{4, newest, byName}, "$defs definitions properties patternProperties dependencies"},
	{keyword{4, 4, nowhere}, "id"},
	{keyword{4, 2019, itself}, "additionalItems"},
	{keyword{6, newest, nowhere}, "$id const"},
	{keyword{6, newest, itself}, "contains propertyNames"},
	{keyword{7, newest, itself}, "if then else"},
	{keyword{2019, newest, nowhere}, "$anchor $vocabulary $recursiveAnchor $recursiveRef minContains maxContains " +
		"dependentRequired"},
	{keyword{2019, newest, itself}, "contentSchema unevaluatedItems unevaluatedProperties"},
	{keyword{2019, newest, byName}, "dependentSchemas"},
	{keyword{2020, newest, nowhere}, "$dynamicAnchor $dynamicRef"},
	{keyword{2020, newest, itself}, "prefixItems"},
}

// keywords is the vocabulary by name.
var keywords = func() map[string]keyword {
	all := map[string]keyword{}
	for _, group := range vocabulary {
		for _, name := range strings.Fields(group.names) {
			all[name] = group.keyword
		}
	}
	return all
}()

// notes are the keywords that refuse no value.
var notes = strings.Fields("$schema id $id $anchor $dynamicAnchor $recursiveAnchor $vocabulary $comment $defs " +
	"definitions title " +
	"description default examples deprecated readOnly writeOnly contentEncoding contentMediaType contentSchema")

// instead has the replacements for keywords of other dialects and of earlier drafts.
var instead = map[string]string{
	"id":              `: write $id`,
	"additionalItems": `: write prefixItems for the first items, and items for all others`,
	"nullable":        `: write "type": ["string", "null"], with the value's own type`,
	"example":         `: write "examples": [...]`,
	"optional":        `: a property is optional unless the list "required" of its object names it`,
	"discriminator":   `: write oneOf with a "const" in each alternative`,
	"extends":         `: write allOf`,
}

// drafts are the values of $schema that the library knows, without the scheme and the empty fragment.
var drafts = map[string]int{
	"json-schema.org/schema":               newest,
	"json-schema.org/draft/2020-12/schema": 2020,
	"json-schema.org/draft/2019-09/schema": 2019,
	"json-schema.org/draft-07/schema":      7,
	"json-schema.org/draft-06/schema":      6,
	"json-schema.org/draft-04/schema":      4,
}

var draftNames = map[int]string{4: "draft-04", 6: "draft-06", 7: "draft-07", 2019: "draft 2019-09",
	2020: "draft 2020-12"}
