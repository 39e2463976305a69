import { gem } from '../../clients/js/gem.js'

const $ = id => document.getElementById(id)

// tools is a client of GEM for the user whose token the page has.
function tools() {
  return gem(supabase.createClient($('url').value, $('key').value, { accessToken: async () => $('token').value }))
}

// result returns the result of a successful call, or throws the error of its receipt.
function result(receipt) {
  if (receipt.status === 'succeeded') return receipt.result
  if (receipt.status === 'failed') throw new Error(receipt.result.error.message)
  throw new Error([receipt.result.reason, ...receipt.result.next_steps].join(' '))
}

async function list() {
  const { leads } = result(await tools().call('leads.list_by_stage', { stage: 'new' }))
  $('leads').replaceChildren(...leads.map(lead => {
    const item = document.createElement('li')
    item.textContent = `${lead.name}, ${lead.suburb}` // as text: user input is data
    return item
  }))
}

$('lead').onsubmit = async event => {
  event.preventDefault()
  $('said').textContent = 'Adding …'
  try {
    const input = Object.fromEntries(['name', 'phone', 'suburb'].map(field => [field, $(field).value]))
    const receipt = await tools().call('leads.create', input)
    const { lead_id } = result(receipt)
    $('said').textContent = receipt.replay_of ? `This phone number has the lead ${lead_id} already.` : `Added as ${lead_id}.`
    await list()
  } catch (error) {
    $('said').textContent = error.message
  }
}
