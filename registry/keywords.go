package registry

import "strconv"

// The library passes over a keyword that it does not know, so that a mistyped minLenght would check nothing and tell
// nobody. So each keyword of each schema is looked up here, in the words of the schema's own draft.

// place says where the value of a keyword holds further schemas.
type place int

const (
	nowhere     place = iota
	oneSchema         // the value is a schema
	listOf            // a list of schemas
	mapOf             // an object of schemas under names of their own
	oneOrListOf       // a schema, or a list of them
)

type keyword struct {
	since, until int // the drafts that have it: 4, 6, 7, 2019, 2020
	place        place
	note         bool // it only notes something, or holds definitions: it refuses no value
}

const (
	oldest = 4
	newest = 2020
)

// keywords are those of JSON Schema, as far as the library acts on them. One that changes no outcome, such as examples,
// may stand in a schema of any draft.
var keywords = map[string]keyword{
	"$schema":          {oldest, newest, nowhere, true},
	"id":               {4, 4, nowhere, true},
	"$id":              {6, newest, nowhere, true},
	"$anchor":          {2019, newest, nowhere, true},
	"$dynamicAnchor":   {2020, newest, nowhere, true},
	"$recursiveAnchor": {2019, newest, nowhere, true},
	"$vocabulary":      {2019, newest, nowhere, true},
	"$comment":         {oldest, newest, nowhere, true},
	"$defs":            {oldest, newest, mapOf, true},
	"definitions":      {oldest, newest, mapOf, true},
	"$ref":             {oldest, newest, nowhere, false},
	"$dynamicRef":      {2020, newest, nowhere, false},
	"$recursiveRef":    {2019, newest, nowhere, false},

	"title":            {oldest, newest, nowhere, true},
	"description":      {oldest, newest, nowhere, true},
	"default":          {oldest, newest, nowhere, true},
	"examples":         {oldest, newest, nowhere, true},
	"deprecated":       {oldest, newest, nowhere, true},
	"readOnly":         {oldest, newest, nowhere, true},
	"writeOnly":        {oldest, newest, nowhere, true},
	"contentEncoding":  {oldest, newest, nowhere, true},
	"contentMediaType": {oldest, newest, nowhere, true},
	"contentSchema":    {2019, newest, oneSchema, true},

	"type":             {oldest, newest, nowhere, false},
	"enum":             {oldest, newest, nowhere, false},
	"const":            {6, newest, nowhere, false},
	"format":           {oldest, newest, nowhere, false},
	"minimum":          {oldest, newest, nowhere, false},
	"maximum":          {oldest, newest, nowhere, false},
	"exclusiveMinimum": {oldest, newest, nowhere, false},
	"exclusiveMaximum": {oldest, newest, nowhere, false},
	"multipleOf":       {oldest, newest, nowhere, false},
	"minLength":        {oldest, newest, nowhere, false},
	"maxLength":        {oldest, newest, nowhere, false},
	"pattern":          {oldest, newest, nowhere, false},

	"minItems":         {oldest, newest, nowhere, false},
	"maxItems":         {oldest, newest, nowhere, false},
	"uniqueItems":      {oldest, newest, nowhere, false},
	"items":            {oldest, newest, oneOrListOf, false},
	"additionalItems":  {oldest, 2019, oneSchema, false},
	"prefixItems":      {2020, newest, listOf, false},
	"unevaluatedItems": {2019, newest, oneSchema, false},
	"contains":         {6, newest, oneSchema, false},
	"minContains":      {2019, newest, nowhere, false},
	"maxContains":      {2019, newest, nowhere, false},

	"required":              {oldest, newest, nowhere, false},
	"minProperties":         {oldest, newest, nowhere, false},
	"maxProperties":         {oldest, newest, nowhere, false},
	"properties":            {oldest, newest, mapOf, false},
	"patternProperties":     {oldest, newest, mapOf, false},
	"additionalProperties":  {oldest, newest, oneSchema, false},
	"unevaluatedProperties": {2019, newest, oneSchema, false},
	"propertyNames":         {6, newest, oneSchema, false},
	"dependencies":          {oldest, newest, mapOf, false}, // of schemas or of lists of names
	"dependentRequired":     {2019, newest, nowhere, false},
	"dependentSchemas":      {2019, newest, mapOf, false},

	"allOf": {oldest, newest, listOf, false},
	"anyOf": {oldest, newest, listOf, false},
	"oneOf": {oldest, newest, listOf, false},
	"not":   {oldest, newest, oneSchema, false},
	"if":    {7, newest, oneSchema, false},
	"then":  {7, newest, oneSchema, false},
	"else":  {7, newest, oneSchema, false},
}

// strangers are words of other dialects, and what JSON Schema says instead.
var strangers = map[string]string{
	"nullable":      `write "type": ["string", "null"], with the value's own type`,
	"example":       `write "examples": [...]`,
	"optional":      `a property is optional unless the list "required" of its object names it`,
	"discriminator": `write oneOf with a "const" in each alternative`,
	"extends":       `write allOf`,
	"divisibleBy":   `write multipleOf`,
	"disallow":      `write not`,
}

// drafts are the values of $schema that the library knows, without http(s):// and the empty fragment.
var drafts = map[string]int{
	"json-schema.org/schema":               newest,
	"json-schema.org/draft/2020-12/schema": 2020,
	"json-schema.org/draft/2019-09/schema": 2019,
	"json-schema.org/draft-07/schema":      7,
	"json-schema.org/draft-06/schema":      6,
	"json-schema.org/draft-04/schema":      4,
}

func draftName(draft int) string {
	switch draft {
	case 2019:
		return "draft 2019-09"
	case 2020:
		return "draft 2020-12"
	}
	return "draft-0" + strconv.Itoa(draft)
}
