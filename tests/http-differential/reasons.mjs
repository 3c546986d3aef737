export class Facts { constructor(c,o,t){Object.assign(this,{c,o,t});} }
export const reasons = [];
